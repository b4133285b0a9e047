"""What invented text messages are made of: slot fillers, and by category a label, a risk and templates."""

from __future__ import annotations

# fmt: off
# Slot fillers; a slot that is not here (money, code, …) is drawn as a number or code instead.
SLOTS: dict[str, list[str]] = {
    "name": ["Asha", "Ravi", "Meera", "Tom", "Leila", "Noa", "Kofi", "Sana", "Priya", "Yusuf", "Elif", "Mei"],
    "kin": ["Mum", "Dad", "Amma", "Appa", "Nani", "Aunt Rosa", "Grandpa", "your brother", "Ima", "Didi"],
    "day": ["today", "tonight", "tomorrow", "Monday", "Tuesday", "Wednesday", "Friday", "Saturday", "Sunday"],
    "past": ["today", "yesterday", "on Monday", "on Wednesday", "last night", "on 3 May", "this morning"],
    "courier": ["Parcelix", "SwiftCrate", "Boxwing", "PostHaste", "Kite Couriers"],
    "bank": ["NorthQuay Bank", "Banyan Bank", "Cobalt Savings", "Lakeview Credit Union", "Tamarind Bank"],
    "app": ["Chatterly", "PayNest", "RideLoop", "ShelfMart", "Cloudpot", "Streamo"],
    "shop": ["GreenBasket", "Shoe Corner", "Luma Home", "Pixel Yard", "Tea & Thread", "Ember Grill"],
    "place": ["the station", "the old market", "our place", "Cafe Juno", "the library", "gate 4", "the pier"],
    "meal": ["dosa", "pizza", "soup", "biryani", "falafel", "noodles", "pancakes", "tacos"],
    "doctor": ["Dr Rao", "Dr Levin", "Dr Okafor", "Dr Lind", "the dentist", "the eye clinic"],
    "task": ["slides", "budget sheet", "release notes", "test report", "contract", "rota", "minutes"],
    "city": ["Mysuru", "Haifa", "Leeds", "Porto", "Osaka", "Accra", "Lund", "Pune", "Galway"],
    "sky": ["heavy rain", "strong wind", "dense fog", "snow showers", "a heat wave", "thunderstorms"],
    "prize": ["a holiday for two", "a new phone", "a gift card", "a smart TV", "a scooter", "a cash prize"],
    "thing": ["keys", "charger", "umbrella", "lunch box", "blue jacket", "headphones", "library book"],
    "hello": ["hi", "hey", "hello", "ನಮಸ್ಕಾರ", "नमस्ते", "שלום", "hola", "你好", "oi"],
    "bye": ["x", "see you", "love you", "thanks!", "ttyl", "ok?", "let me know", "no rush", "ಧನ್ಯವಾದ", "תודה"],
    "emoji": ["🎉", "😂", "❤️", "👍", "🙏", "☔", "🍕", "😴", "🚗", "🎂", "👨‍👩‍👧", "🤞🏽"],
    "job": ["data entry", "video rating", "parcel sorting", "form filling", "hotel reviews"],
    "utility": ["Volta Power", "ClearWater", "FiberBee", "City Gas", "Metro Mobile"],
}

# category → (label, base risk, templates). The phrase in [ ] is the evidence that the answer quotes.
CATEGORIES: dict[str, tuple[str, int, list[str]]] = {
    "delivery": ("ham", 4, [
        "{courier}: your parcel {code} [arrives {day}] between {hour} and {hour}.",
        "Your order from {shop} is [out for delivery]. Driver: {name}, van {code}.",
        "{courier} missed you {day}. [Collect parcel {code}] at {place} before {hour}.",
        "{shop}: order {code} has shipped, [due {day}]. No signature needed.",
    ]),
    "bank_alert": ("ham", 9, [
        "{bank}: [{money} spent] on card ending {pin} at {shop} {past}.",
        "{bank} alert: [balance below {money}] on account x{pin} at {hour}.",
        "Salary of {money} [credited to a/c x{pin}] {past}. {bank}",
        "{bank}: standing order of {money} to {name} [paid {past}].",
    ]),
    "otp": ("ham", 6, [
        "[{otp}] is your {app} code. It expires in {small} minutes.",
        "{app}: use [code {otp}] to sign in. Do not share it with anyone.",
        "Your {bank} one-time password is [{otp}] for {money} at {shop}.",
        "{otp} is the code for {app} on a new phone. [Not you? Ignore this.]",
    ]),
    "appointment": ("ham", 3, [
        "Reminder: {doctor} expects you [{day} at {hour}]. Reply C to cancel.",
        "Your visit with {doctor} was [moved to {day} {hour}].",
        "{doctor}: please arrive {small} minutes early {day}, [bring card {code}].",
        "Vaccination for {name} is booked [{day}, {hour}] in {city}.",
    ]),
    "family": ("ham", 1, [
        "{hello} {name}, {kin} here. Did you eat? I made {meal} {emoji}",
        "{kin} says you left your {thing} here. [Pick it up {day}]? {bye}",
        "Happy birthday {name}! {emoji} Call {kin} after {hour}. {bye}",
        "We landed in {city} {emoji} all fine. {kin} sends love to {name}",
    ]),
    "plans": ("ham", 2, [
        "{hello} {name}! [{meal} at {place}] {day}? Around {hour}. {bye}",
        "Running {small} min late, wait at {place} {emoji} {name}",
        "Are we still on for {day}? [Meet at {place} {hour}]. {name}",
        "Film {day} at {hour}, I got seats {small} and {small}. {name} comes too {emoji}",
    ]),
    "work": ("ham", 3, [
        "{name}: can you [send the {task}] before {hour}? Client asks.",
        "Stand-up is [moved to {hour} {day}]. Please update the {task}.",
        "The {task} looks good, only page {small} needs numbers. Thanks, {name}",
        "Shift swap: {name} takes {day}, [you take {day} from {hour}].",
    ]),
    "weather": ("ham", 2, [
        "{city} weather: [{sky}] from {hour} {day}, high of {small} C.",
        "Warning for {city}: [{sky} expected] {day}. Stay indoors after {hour}.",
        "{day} in {city}: sunny spells, {small} C, {sky} by {hour}.",
    ]),
    "travel": ("ham", 3, [
        "Train {code} to {city} is [delayed by {small} min]. Platform {small}.",
        "RideLoop: {name} arrives in {small} min, [plate {code}], PIN {pin}.",
        "Your booking {code}: {city} to {city}, [{day} {hour}], seat {small}.",
    ]),
    "bill": ("ham", 8, [
        "{utility}: your bill of {money} is [due {day}]. Ref {code}.",
        "{utility}: payment of {money} received {past}, [thank you]. Ref {code}",
        "{utility}: you have used [{small}% of your data]. Renews {day}.",
    ]),
    "promo": ("spam", 38, [
        "{shop} sale! [{small}% off everything] until {day}. Code {code}. {link}",
        "{emoji} Only {day}: [two {meal} for one] at {shop}. Text STOP to end.",
        "{app} Plus: [first {small} weeks free], then {money} a month. {link}",
    ]),
    "survey": ("spam", 30, [
        "How was {shop}? [Answer {small} questions], get {money} off. {link}",
        "{utility} wants your view: [rate us 1 to {small}] by {day}. {link}",
        "Dear customer, [a short survey] from {bank} waits: {link} Ref {code}",
    ]),
    "loan_offer": ("spam", 66, [
        "{name}, you are [pre-approved for {money}]! No papers, call {phone}.",
        "Instant loan {money} at {small}% in {small} minutes. [No credit check] {link}",
        "Debt worries? [Cut payments by {small}%] with one call: {phone}. Ends {day}.",
    ]),
    "prize_scam": ("spam", 88, [
        "CONGRATS {name}! You [won {prize}]. Claim with code {code} at {link}",
        "Your number was drawn for {prize}! [Pay {money} to release it]: {phone}",
        "{shop} lucky draw: {prize} is yours {emoji} [reply with your card number] by {day}",
    ]),
    "phishing": ("spam", 93, [
        "{bank}: your account is locked. [Verify your PIN now] at {link}",
        "{courier}: parcel {code} is held, [pay {money} customs] today: {link}",
        "URGENT {utility} cuts your line at {hour}. [Confirm card details] {link}",
        "Hi {kin}, new number, phone broke. [Send {money} now] to a/c {otp}, urgent!",
    ]),
    "job_scam": ("spam", 82, [
        "Earn {money} a day with {job} from home! [No skills needed]. Write {phone}",
        "HR of {app}: you are [hired for {job}]. Deposit {money} to start: {link}",
        "{name} from {shop}: {job}, {small} hours, {money}. [Pay after a small fee] {link}",
    ]),
}
